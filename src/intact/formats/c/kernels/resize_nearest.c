/* Takes the pixel of row ys[y] and column xs[x]. */
static void resize_nearest(const resize_params *p, const int32_t *ys, const int32_t *xs,
                           const int8_t *input, int8_t *output)
{
    for (int32_t batch = 0; batch < p->batches; batch++) {
        for (int32_t y = 0; y < p->output_height; y++) {
            for (int32_t x = 0; x < p->output_width; x++) {
                memcpy(output, input + (ys[y] * p->input_width + xs[x]) * p->channels,
                       (size_t)p->channels);
                output += p->channels;
            }
        }
        input += p->input_height * p->input_width * p->channels;
    }
}
