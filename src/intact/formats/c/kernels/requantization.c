/* ---- requantize_shift.c -------------------------------------------------- */
/* value / 2^shift, rounded @ROUNDING@ and saturated; a negative shift is to the left. */
static int32_t requantize_@KIND@(int64_t value, int32_t shift)
{
    int64_t result = value;
    if (shift <= 0) {
        if (value > INT32_MAX || value < INT32_MIN) {
            return (value < 0) ? INT32_MIN : INT32_MAX;
        }
        result = value * ((int64_t)1 << -shift);
    } else {
        const int64_t half = (int64_t)1 << (shift - 1);
        result = (value + @NUDGE@) >> shift;
    }
    if (result < INT32_MIN) {
        return INT32_MIN;
    }
    return (result > INT32_MAX) ? INT32_MAX : (int32_t)result;
}
/* ---- requantize_single.c ------------------------------------------------- */
/* value * multiplier * 2^(shift - 31), rounded once, half up; shift is -31 to 30. */
static int32_t requantize_single(int32_t value, int32_t multiplier, int32_t shift)
{
    const int64_t half = (int64_t)1 << (30 - shift);
    return wrap(((int64_t)value * multiplier + half) >> (31 - shift));
}
/* ---- requantize_double.c ------------------------------------------------- */
/* value * multiplier * 2^(shift - 31), rounded twice: half up, then half away from zero.
   A positive shift is to the left and comes before the product. */
static int32_t requantize_double(int32_t value, int32_t multiplier, int32_t shift)
{
    if (shift > 0) {
        return high_multiply(signed_bits((uint32_t)value << shift), multiplier);
    }
    return (int32_t)divide_by_power(high_multiply(value, multiplier), -shift);
}
/* ---- requantize_double_half_up.c ----------------------------------------- */
/* value * multiplier * 2^(shift - 31), rounded half up twice.
   A positive shift is to the left and comes before the product. */
static int32_t requantize_double_half_up(int32_t value, int32_t multiplier, int32_t shift)
{
    if (shift > 0) {
        return high_multiply(signed_bits((uint32_t)value << shift), multiplier);
    }
    const int64_t half = ((int64_t)1 << -shift) >> 1;
    return (int32_t)((high_multiply(value, multiplier) + half) >> -shift);
}
/* ---- requantize_codes.c -------------------------------------------------- */
/* Brings codes to another scale; input and output may be one. */
static void requantize_codes_@KIND@(const requantize_params *p, const int8_t *input,
                                    int8_t *output)
{
    for (int32_t index = 0; index < p->length; index++) {
        const int32_t value = input[index] + p->input_offset;
        const int32_t scaled =
            @RESCALE(value)@;
        output[index] = clamp_code(scaled, p->output_offset, p->activation_min,
                                   p->activation_max);
    }
}
/* ---- requantize.h -------------------------------------------------------- */
/* Codes brought to another scale. */
typedef struct {
    int32_t length;
    int32_t input_offset;
    int32_t output_multiplier, output_shift, output_offset;
    int32_t activation_min, activation_max;
} requantize_params;
/* ---- scaled_operand.c ---------------------------------------------------- */
/* An operand of an addition, shifted left for precision and brought to the common scale. */
static int32_t scaled_operand_@KIND@(int32_t value, int32_t left_shift, int32_t multiplier,
                                     int32_t shift)
{
    return requantize_@KIND@(value * ((int32_t)1 << left_shift), multiplier, shift);
}
