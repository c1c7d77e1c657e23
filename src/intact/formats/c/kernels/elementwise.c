/* ---- elementwise.h ------------------------------------------------------- */
/* Two operands, element by element: rows of a grid, and a run of elements in each row. */
typedef struct {
    int32_t rows;
    int32_t axes;
    int32_t lengths[@AXES@];
    int32_t first_strides[@AXES@], second_strides[@AXES@]; /* 0 where an operand is broadcast */
    int32_t length, first_step, second_step;
    int32_t first_offset, first_multiplier, first_shift;
    int32_t second_offset, second_multiplier, second_shift;
    int32_t left_shift;
    int32_t output_multiplier, output_shift, output_offset;
    int32_t activation_min, activation_max;
} elementwise_params;
/* ---- elementwise.c ------------------------------------------------------- */
/* @NAME@ of each pair of elements.
   The output may lie where an operand of its shape does. */
static void @NAME@_all(const elementwise_params *p, const int8_t *first,
                       const int8_t *second, int8_t *output)
{
    for (int32_t row = 0; row < p->rows; row++) {
        const int8_t *a = first + strided_offset(row, p->lengths, p->first_strides, p->axes);
        const int8_t *b = second + strided_offset(row, p->lengths, p->second_strides, p->axes);
        for (int32_t index = 0; index < p->length; index++) {
            *output++ = @NAME@(p, a[index * p->first_step],
                               b[index * p->second_step]);
        }
    }
}
/* ---- add.c --------------------------------------------------------------- */
/* Sum of two codes. */
static int8_t add_@KIND@(const elementwise_params *p, int8_t first, int8_t second)
{
    const int32_t a = scaled_operand_@KIND@(first + p->first_offset, p->left_shift,
                                            p->first_multiplier, p->first_shift);
    const int32_t b = scaled_operand_@KIND@(second + p->second_offset, p->left_shift,
                                            p->second_multiplier, p->second_shift);
    const int32_t scaled =
        @RESCALE(a + b)@;
    return clamp_code(scaled, p->output_offset, p->activation_min,
                      p->activation_max);
}
/* ---- add_shift.c --------------------------------------------------------- */
/* Sum of two codes, each shifted to the finer of their scales. */
static int8_t add_@KIND@(const elementwise_params *p, int8_t first, int8_t second)
{
    const int64_t a = (first + p->first_offset) * ((int64_t)1 << p->first_shift);
    const int64_t b = (second + p->second_offset) * ((int64_t)1 << p->second_shift);
    const int32_t scaled =
        @RESCALE(a + b)@;
    return clamp_code(scaled, p->output_offset, p->activation_min,
                      p->activation_max);
}
/* ---- sub.c --------------------------------------------------------------- */
/* Difference of two codes. */
static int8_t sub_@KIND@(const elementwise_params *p, int8_t first, int8_t second)
{
    const int32_t a = scaled_operand_@KIND@(first + p->first_offset, p->left_shift,
                                            p->first_multiplier, p->first_shift);
    const int32_t b = scaled_operand_@KIND@(second + p->second_offset, p->left_shift,
                                            p->second_multiplier, p->second_shift);
    const int32_t scaled =
        @RESCALE(a - b)@;
    return clamp_code(scaled, p->output_offset, p->activation_min,
                      p->activation_max);
}
/* ---- sub_shift.c --------------------------------------------------------- */
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
/* ---- mul.c --------------------------------------------------------------- */
/* Product of two codes. */
static int8_t mul_@KIND@(const elementwise_params *p, int8_t first, int8_t second)
{
    const int32_t product = (first + p->first_offset) * (second + p->second_offset);
    const int32_t scaled =
        @RESCALE(product)@;
    return clamp_code(scaled, p->output_offset, p->activation_min,
                      p->activation_max);
}
/* ---- maximum.c ----------------------------------------------------------- */
/* Larger of two codes of one scale. */
static int8_t maximum(const elementwise_params *p, int8_t first, int8_t second)
{
    const int32_t code = (first > second) ? first : second;
    return clamp_code(code, 0, p->activation_min, p->activation_max);
}
/* ---- minimum.c ----------------------------------------------------------- */
/* Smaller of two codes of one scale. */
static int8_t minimum(const elementwise_params *p, int8_t first, int8_t second)
{
    const int32_t code = (first < second) ? first : second;
    return clamp_code(code, 0, p->activation_min, p->activation_max);
}
/* ---- squared_difference.c ------------------------------------------------ */
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
/* ---- squared_difference_shift.c ------------------------------------------ */
/* Squared difference of two codes, each shifted to the finer of their scales. */
static int8_t squared_difference_@KIND@(const elementwise_params *p, int8_t first, int8_t second)
{
    const int64_t a = (first + p->first_offset) * ((int64_t)1 << p->first_shift);
    const int64_t b = (second + p->second_offset) * ((int64_t)1 << p->second_shift);
    const int32_t scaled =
        @RESCALE((a - b) * (a - b))@;
    return clamp_code(scaled, p->output_offset, p->activation_min,
                      p->activation_max);
}
/* ---- prelu.c ------------------------------------------------------------- */
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
/* ---- lookup.c ------------------------------------------------------------ */
/* A function of one code, tabulated for the codes -128 to 127; input and output may be one. */
static void lookup(const int8_t *table, const int8_t *input, int8_t *output, int32_t length)
{
    for (int32_t index = 0; index < length; index++) {
        output[index] = table[input[index] + 128];
    }
}
