/* A code, or its product with a slope where it stands for less than zero. */
static int8_t prelu_@KIND@(const elementwise_params *p, int8_t first, int8_t second)
{
    const int32_t value = first + p->first_offset;
    const int32_t product = value * (second + p->second_offset);
    const int32_t scaled =
        (value < 0) ? @RESCALE_SECOND(product)@
                    : @RESCALE(value)@;
    return clamp_code(scaled, p->output_offset, p->activation_min, p->activation_max);
}
