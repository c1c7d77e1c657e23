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
