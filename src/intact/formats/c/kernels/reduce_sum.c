/* Sums over axes, times a multiplier: sums, and means where it has the divisor in it. */
static void reduce_sum_@KIND@(const reduce_params *p, const int8_t *input, int8_t *output)
{
    for (int32_t result = 0; result < p->results; result++) {
        const int32_t sum = sum_of(
            p, input + strided_offset(result, p->kept_lengths, p->kept_strides, p->kept_axes));
        const int32_t scaled =
            @RESCALE(sum)@;
        *output++ =
            clamp_code(scaled, p->output_offset, p->activation_min, p->activation_max);
    }
}
