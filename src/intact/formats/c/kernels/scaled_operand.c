/* An operand of an addition, shifted left for precision and brought to the common scale. */
static int32_t scaled_operand_@KIND@(int32_t value, int32_t left_shift, int32_t multiplier,
                                     int32_t shift)
{
    return requantize_@KIND@(value * ((int32_t)1 << left_shift), multiplier, shift);
}
