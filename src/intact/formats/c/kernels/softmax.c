/* Softmax to codes of 1 / 2^fraction. exponentials[d] is exp(-d * input scale), a fraction of 2^31.
   Input and output may be one. */
static void softmax(const softmax_params *p, const int32_t *exponentials, const int8_t *input,
                    int8_t *output)
{
    for (int32_t row = 0; row < p->outer * p->inner; row++) {
        const int32_t start = row / p->inner * p->length * p->inner + row % p->inner;
        const int8_t *from = input + start;
        int8_t *to = output + start;
        const int32_t largest = row_largest(from, p->length, p->inner);
        const uint32_t sum = row_sum(from, p->length, p->inner, largest, exponentials);
        const int32_t headroom = headroom_of(sum);
        const int32_t inverse =
            one_over_one_plus((int32_t)((sum << headroom) - 0x80000000U));
        for (int32_t index = 0; index < p->length; index++) {
            const int32_t exponential = exponentials[largest - from[index * p->inner]];
            const int64_t share =
                divide_by_power(high_multiply(inverse, exponential), 43 - p->fraction - headroom);
            to[index * p->inner] = clamp_code((int32_t)share, p->output_offset,
                                              p->activation_min, p->activation_max);
        }
    }
}
