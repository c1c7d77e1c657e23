/* Difference of two codes, each shifted to the finer of their scales. */
static int8_t sub_@KIND@(const elementwise_params *p, int8_t first, int8_t second)
{
    const int64_t a = (first + p->first_offset) * ((int64_t)1 << p->first_shift);
    const int64_t b = (second + p->second_offset) * ((int64_t)1 << p->second_shift);
    const int32_t scaled =
        @RESCALE(a - b)@;
    return clamp_code(scaled, p->output_offset, p->activation_min,
                      p->activation_max);
}
