/* Transposed convolution, each output gathered from the inputs that reach it, so that no memory
   for sums is needed; weights are [output channels, kernel height, kernel width, channels of a
   group], the pads are cut off the top and left of the full result. */
static void transposed_convolution_@KIND@(const convolution_params *p, const int8_t *input,
                                          const int8_t *weights, const int32_t *bias,
                                          const int32_t *@FIRST@, const int32_t *@SECOND@,
                                          int8_t *output)
{
    const int32_t depth = p->input_channels / p->groups;
    const int32_t group_outputs = p->output_channels / p->groups;
    for (int32_t batch = 0; batch < p->batches; batch++) {
        for (int32_t out_y = 0; out_y < p->output_height; out_y++) {
            for (int32_t out_x = 0; out_x < p->output_width; out_x++) {
                for (int32_t channel = 0; channel < p->output_channels; channel++) {
                    const int32_t scale = channel * p->per_channel;
                    const int8_t *group = input + channel / group_outputs * depth;
                    const int8_t *taps =
                        weights + channel * p->kernel_height * p->kernel_width * depth;
                    uint32_t sum = @START@;
                    for (int32_t ky = 0; ky < p->kernel_height; ky++) {
                        const int32_t far_y = out_y + p->pad_top - ky * p->dilation_height;
                        const int32_t y = far_y / p->stride_height;
                        if (far_y < 0 || far_y % p->stride_height != 0 || y >= p->input_height) {
                            continue;
                        }
                        for (int32_t kx = 0; kx < p->kernel_width; kx++) {
                            const int32_t far_x = out_x + p->pad_left - kx * p->dilation_width;
                            const int32_t x = far_x / p->stride_width;
                            if (far_x < 0 || far_x % p->stride_width != 0 ||
                                x >= p->input_width) {
                                continue;
                            }
                            sum += dot_product(
                                group + (y * p->input_width + x) * p->input_channels,
                                p->input_offset, taps + (ky * p->kernel_width + kx) * depth,
                                depth);
                        }
                    }
                    const int32_t scaled =
                        @FINISH@;
                    *output++ = clamp_code(scaled, p->output_offset, p->activation_min,
                                           p->activation_max);
                }
            }
        }
        input += p->input_height * p->input_width * p->input_channels;
    }
}
