/* Means of windows, rounded @ROUNDING@. */
static void average_pool_@KIND@(const pool_params *p, const int8_t *input, int8_t *output)
{
    for (int32_t batch = 0; batch < p->batches; batch++) {
        for (int32_t out_y = 0; out_y < p->output_height; out_y++) {
            for (int32_t out_x = 0; out_x < p->output_width; out_x++) {
                for (int32_t channel = 0; channel < p->channels; channel++) {
                    int32_t sum = 0;
                    int32_t count = 0;
                    for (int32_t ky = 0; ky < p->kernel_height; ky++) {
                        const int32_t y = out_y * p->stride_height - p->pad_top + ky;
                        for (int32_t kx = 0; kx < p->kernel_width; kx++) {
                            const int32_t x = out_x * p->stride_width - p->pad_left + kx;
                            if (y >= 0 && y < p->input_height && x >= 0 && x < p->input_width) {
                                sum += p->input_offset +
                                       input[(y * p->input_width + x) * p->channels + channel];
                                count++;
                            } else if (p->count_pads) {
                                sum += p->pad_value;
                                count++;
                            }
                        }
                    }
                    const int32_t mean = divide_@KIND@(sum, (count > 0) ? count : 1);
                    *output++ = clamp_code(mean, p->output_offset, p->activation_min,
                                           p->activation_max);
                }
            }
        }
        input += p->input_height * p->input_width * p->channels;
    }
}
