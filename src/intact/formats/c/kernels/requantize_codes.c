/* Brings codes to another scale; input and output may be one. */
static void requantize_codes_@KIND@(const requantize_params *p, const int8_t *input,
                                    int8_t *output)
{
    for (int32_t index = 0; index < p->length; index++) {
        const int32_t value = input[index] + p->input_offset;
        const int32_t scaled =
            @RESCALE(value)@;
        output[index] = clamp_code(scaled, p->output_offset, p->activation_min,
                                   p->activation_max);
    }
}
