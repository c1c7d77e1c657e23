/* Squared difference of two codes. */
static int8_t squared_difference_@KIND@(const elementwise_params *p, int8_t first, int8_t second)
{
    const int32_t a = scaled_operand_@KIND@(first + p->first_offset, p->left_shift,
                                            p->first_multiplier, p->first_shift);
    const int32_t b = scaled_operand_@KIND@(second + p->second_offset, p->left_shift,
                                            p->second_multiplier, p->second_shift);
    const uint32_t difference = (uint32_t)(a - b);
    const int32_t square = signed_bits(difference * difference);
    const int32_t scaled =
        @RESCALE(square)@;
    return clamp_code(scaled, p->output_offset, p->activation_min,
                      p->activation_max);
}
