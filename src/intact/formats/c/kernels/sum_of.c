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
