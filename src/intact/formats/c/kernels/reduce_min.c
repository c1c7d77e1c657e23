/* Smallest codes over axes. */
static void reduce_min(const reduce_params *p, const int8_t *input, int8_t *output)
{
    for (int32_t result = 0; result < p->results; result++) {
        const int8_t *cell =
            input + strided_offset(result, p->kept_lengths, p->kept_strides, p->kept_axes);
        int8_t found = cell[0];
        for (int32_t row = 0; row < p->rows; row++) {
            const int8_t *run = cell + strided_offset(row, p->lengths, p->strides, p->axes);
            for (int32_t index = 0; index < p->length; index++) {
                const int8_t code = run[index * p->step];
                found = (code < found) ? code : found;
            }
        }
        *output++ = found;
    }
}
