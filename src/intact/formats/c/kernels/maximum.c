/* Larger of two codes of one scale. */
static int8_t maximum(const elementwise_params *p, int8_t first, int8_t second)
{
    const int32_t code = (first > second) ? first : second;
    return clamp_code(code, 0, p->activation_min, p->activation_max);
}
