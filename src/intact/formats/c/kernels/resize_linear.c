/* Interpolates between two rows and two columns with weights of 10 bits and rounds once. For each
   row or column of the output, ys and xs hold three numbers: the two that it lies between, and
   the weight of the second in 1024ths. */
static void resize_linear_@KIND@(const resize_params *p, const int32_t *ys, const int32_t *xs,
                                 const int8_t *input, int8_t *output)
{
    for (int32_t batch = 0; batch < p->batches; batch++) {
        for (int32_t y = 0; y < p->output_height; y++) {
            const int32_t *row = ys + 3 * y;
            for (int32_t x = 0; x < p->output_width; x++) {
                const int32_t *column = xs + 3 * x;
                const int8_t *top = input + row[0] * p->input_width * p->channels;
                const int8_t *bottom = input + row[1] * p->input_width * p->channels;
                for (int32_t channel = 0; channel < p->channels; channel++) {
                    const int32_t left = column[0] * p->channels + channel;
                    const int32_t right = column[1] * p->channels + channel;
                    const int32_t above =
                        top[left] * (1024 - column[2]) + top[right] * column[2];
                    const int32_t below =
                        bottom[left] * (1024 - column[2]) + bottom[right] * column[2];
                    const int32_t sum = above * (1024 - row[2]) + below * row[2];
                    *output++ = (int8_t)@MEAN_OF_SUM@;
                }
            }
        }
        input += p->input_height * p->input_width * p->channels;
    }
}
