/* ---- clamp_code.c -------------------------------------------------------- */
/* A scaled result as a code: output offset added, clamped. The sum cannot overflow. */
static int8_t clamp_code(int32_t value, int32_t offset, int32_t lowest, int32_t highest)
{
    if (value <= lowest - offset) {
        return (int8_t)lowest;
    }
    if (value >= highest - offset) {
        return (int8_t)highest;
    }
    return (int8_t)(value + offset);
}
/* ---- code_of_whole.c ----------------------------------------------------- */
/* Makes codes of whole numbers by a table of `length` of them, from `least` on. */
static void code_of_whole(const int32_t *input, int32_t count, int32_t least, int32_t length,
                          const int8_t *codes, int8_t *output)
{
    for (int32_t index = 0; index < count; index++) {
        const int32_t number = input[index];
        if (number < least) {
            output[index] = codes[0];
        } else if (number >= least + length) {
            output[index] = codes[length - 1];
        } else {
            output[index] = codes[number - least];
        }
    }
}
/* ---- wrap.c -------------------------------------------------------------- */
/* The low 32 bits of a number. */
static int32_t wrap(int64_t value)
{
    return signed_bits((uint32_t)((uint64_t)value & 0xffffffffU));
}
/* ---- signed_bits.c ------------------------------------------------------- */
/* The signed number that has these 32 bits (two's complement). */
static int32_t signed_bits(uint32_t bits)
{
    return (bits <= 0x7fffffffU) ? (int32_t)bits : -(int32_t)(0xffffffffU - bits) - 1;
}
/* ---- sum_of.c ------------------------------------------------------------ */
/* Sum of the elements that make one result, each with the input offset. */
static int32_t sum_of(const reduce_params *p, const int8_t *input)
{
    int32_t sum = p->rows * p->length * p->input_offset;
    for (int32_t row = 0; row < p->rows; row++) {
        const int8_t *run = input + strided_offset(row, p->lengths, p->strides, p->axes);
        for (int32_t index = 0; index < p->length; index++) {
            sum += run[index * p->step];
        }
    }
    return sum;
}
/* ---- headroom_of.c ------------------------------------------------------- */
/* Zero bits above the highest one of a positive number. */
static int32_t headroom_of(uint32_t value)
{
    int32_t headroom = 0;
    while ((value << headroom) < 0x80000000U) {
        headroom++;
    }
    return headroom;
}
/* ---- shift_left_saturating.c --------------------------------------------- */
/* value * 2^exponent, saturated. */
static int32_t shift_left_saturating(int32_t value, int32_t exponent)
{
    const int64_t result = value * ((int64_t)1 << exponent);
    if (result > INT32_MAX) {
        return INT32_MAX;
    }
    return (result < INT32_MIN) ? INT32_MIN : (int32_t)result;
}
/* ---- high_multiply.c ----------------------------------------------------- */
/* a * b / 2^31, rounded half up; only the square of INT32_MIN does not fit and saturates. */
static int32_t high_multiply(int32_t a, int32_t b)
{
    if (a == INT32_MIN && b == INT32_MIN) {
        return INT32_MAX;
    }
    return (int32_t)(((int64_t)a * b + ((int64_t)1 << 30)) >> 31);
}
/* ---- divide.c ------------------------------------------------------------ */
/* sum / count, rounded @ROUNDING@; count is positive. */
static int32_t divide_@KIND@(int32_t sum, int32_t count)
{
    int32_t floor = sum / count;
    int32_t rest = sum % count;
    if (rest < 0) {
        rest += count;
        floor -= 1;
    }
    return floor + (@IS_UP@);
}
/* ---- divide_by_power.c --------------------------------------------------- */
/* value / 2^exponent, rounded half away from zero; exponent is 0 to 62. */
static int64_t divide_by_power(int64_t value, int32_t exponent)
{
    if (exponent == 0) {
        return value;
    }
    return (value + ((int64_t)1 << (exponent - 1)) - (value < 0)) >> exponent;
}
/* ---- one_over_one_plus.c ------------------------------------------------- */
/* 1 / (1 + x) of x in [0, 1], both fractions of 2^31: three steps of Newton's method on half the
   denominator, with 29 bits behind the point, from 48/17 - 32/17 * half. */
static int32_t one_over_one_plus(int32_t x)
{
    const int32_t half = (int32_t)divide_by_power((int64_t)x + INT32_MAX, 1);
    int32_t guess = 1515870810 + high_multiply(half, -1010580540);
    for (int32_t step = 0; step < 3; step++) {
        const int32_t error = ((int32_t)1 << 29) - high_multiply(half, guess);
        guess += shift_left_saturating(high_multiply(guess, error), 2);
    }
    return shift_left_saturating(guess, 1);
}
/* ---- dot_product.c ------------------------------------------------------- */
/* Sum of (input + offset) * weight over a run of channels, modulo 2^32. */
static uint32_t dot_product(const int8_t *input, int32_t offset, const int8_t *weights,
                            int32_t length)
{
    uint32_t sum = 0;
    for (int32_t index = 0; index < length; index++) {
        sum += (uint32_t)((input[index] + offset) * weights[index]);
    }
    return sum;
}
/* ---- strided_offset.c ---------------------------------------------------- */
/* Where row number `row` of a grid starts, in elements. */
static int32_t strided_offset(int32_t row, const int32_t *lengths, const int32_t *strides,
                              int32_t axes)
{
    int32_t offset = 0;
    for (int32_t axis = axes - 1; axis >= 0; axis--) {
        offset += row % lengths[axis] * strides[axis];
        row /= lengths[axis];
    }
    return offset;
}
