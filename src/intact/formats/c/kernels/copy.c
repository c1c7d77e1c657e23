/* Moves elements from places at equal distances to places at equal distances. */
static void copy(const copy_params *p, const int8_t *input, int8_t *output)
{
    for (int32_t row = 0; row < p->rows; row++) {
        const int8_t *from = input + p->input_start +
                             strided_offset(row, p->lengths, p->input_strides, p->axes);
        int8_t *to = output + p->output_start +
                     strided_offset(row, p->lengths, p->output_strides, p->axes);
        if (p->input_step == 1 && p->output_step == 1) {
            memcpy(to, from, (size_t)p->length);
            continue;
        }
        for (int32_t index = 0; index < p->length; index++) {
            to[index * p->output_step] = from[index * p->input_step];
        }
    }
}
