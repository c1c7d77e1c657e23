/* Matrix products of two activations. */
static void batch_matmul_@KIND@(const batch_matmul_params *p, const int8_t *first,
                                const int8_t *second, int8_t *output)
{
    for (int32_t product = 0; product < p->products; product++) {
        const int8_t *a = first + strided_offset(product, p->lengths, p->first_strides, p->axes);
        const int8_t *b = second + strided_offset(product, p->lengths, p->second_strides, p->axes);
        for (int32_t row = 0; row < p->rows; row++) {
            for (int32_t column = 0; column < p->columns; column++) {
                uint32_t sum = 0;
                for (int32_t index = 0; index < p->depth; index++) {
                    sum += (uint32_t)((a[row * p->depth + index] + p->first_offset) *
                                      (b[index * p->columns + column] + p->second_offset));
                }
                const int32_t scaled =
                    @RESCALE(signed_bits(sum))@;
                *output++ = clamp_code(scaled, p->output_offset, p->activation_min,
                                       p->activation_max);
            }
        }
    }
}
