/* Fully connected layer. */
static void fully_connected_@KIND@(const fully_connected_params *p, const int8_t *input,
                                   const int8_t *weights, const int32_t *bias,
                                   const int32_t *@FIRST@, const int32_t *@SECOND@,
                                   int8_t *output)
{
    for (int32_t row = 0; row < p->rows; row++) {
        for (int32_t channel = 0; channel < p->output_channels; channel++) {
            const int32_t scale = channel * p->per_channel;
            uint32_t sum = @START@;
            sum += dot_product(input, p->input_offset, weights + channel * p->depth, p->depth);
            const int32_t scaled =
                @FINISH@;
            *output++ = clamp_code(scaled, p->output_offset, p->activation_min,
                                   p->activation_max);
        }
        input += p->depth;
    }
}
