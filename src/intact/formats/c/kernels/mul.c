/* Product of two codes. */
static int8_t mul_@KIND@(const elementwise_params *p, int8_t first, int8_t second)
{
    const int32_t product = (first + p->first_offset) * (second + p->second_offset);
    const int32_t scaled =
        @RESCALE(product)@;
    return clamp_code(scaled, p->output_offset, p->activation_min,
                      p->activation_max);
}
