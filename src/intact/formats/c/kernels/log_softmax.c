/* Logarithm of softmax to codes of 1/16. exponentials[d] is exp(-d * input scale), a fraction of
   2^31, and differences[d] is -d * input scale with 26 bits behind the point.
   Input and output may be one. */
static void log_softmax(const softmax_params *p, const int32_t *exponentials,
                        const int32_t *differences, const int8_t *input, int8_t *output)
{
    for (int32_t row = 0; row < p->outer * p->inner; row++) {
        const int32_t start = row / p->inner * p->length * p->inner + row % p->inner;
        const int8_t *from = input + start;
        int8_t *to = output + start;
        const int32_t largest = row_largest(from, p->length, p->inner);
        const uint32_t sum = row_sum(from, p->length, p->inner, largest, exponentials);
        const int32_t logarithm = log_of_sum((int32_t)sum);
        for (int32_t index = 0; index < p->length; index++) {
            const int32_t below = largest - from[index * p->inner];
            int8_t code = (int8_t)p->activation_min;
            if (below < p->reach) {
                const int64_t steps =
                    divide_by_power((int64_t)differences[below] - logarithm, 22);
                code = clamp_code((int32_t)steps, p->output_offset, p->activation_min,
                                  p->activation_max);
            }
            to[index * p->inner] = code;
        }
    }
}
