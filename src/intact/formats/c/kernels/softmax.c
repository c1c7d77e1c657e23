/* ---- softmax.h ----------------------------------------------------------- */
/* Softmax along one axis of data [outer, length, inner]. */
typedef struct {
    int32_t outer, length, inner;
    int32_t reach; /* differences below this one count in a logarithm */
    int32_t fraction; /* bits behind the point of a share's code */
    int32_t output_offset;
    int32_t activation_min, activation_max;
} softmax_params;
/* ---- softmax.c ----------------------------------------------------------- */
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
/* ---- log_softmax.c ------------------------------------------------------- */
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
/* ---- log_of_sum.c -------------------------------------------------------- */
/* Logarithm, with 26 bits behind the point, of a number that is not below 1, with 19 behind it:
   a power of two in steps of one half, times a number near 2^-1/4, whose logarithm is a quotient
   of polynomials in fractions of 2^31. */
static int32_t log_of_sum(int32_t sum)
{
    const int32_t fourth_root = 1805811301; /* 2^-1/4 */
    const int32_t half_root = 1518500250;   /* 2^-1/2 */
    const int32_t quarter = (int32_t)1 << 23;    /* 1/4 with 25 bits behind the point */
    const int32_t headroom = headroom_of((uint32_t)sum);
    const int32_t product_headroom = headroom_of((uint32_t)high_multiply(sum, half_root)) - 1;
    const int32_t whole = shift_left_saturating(sum, headroom - 1);
    const int32_t first = shift_left_saturating(high_multiply(whole, half_root), 1);
    const int32_t second = shift_left_saturating(sum, product_headroom);
    const int32_t first_power = (12 - headroom) * ((int32_t)1 << 25) + quarter;
    const int32_t second_power = (12 - product_headroom) * ((int32_t)1 << 25) - quarter;
    const int32_t power = (first_power > second_power) ? first_power : second_power;
    const int32_t rest = (first < second) ? first : second;

    const int32_t middle = (int32_t)divide_by_power((int64_t)rest + fourth_root, 1);
    const int32_t q = 2 * (rest - fourth_root);
    const int32_t square = high_multiply(q, q);
    const int32_t cubic = high_multiply(high_multiply(q, square), 117049297);
    const int32_t numerator = high_multiply(q, rest) + cubic;
    const int32_t line = 1057819769 + q + high_multiply(127690142, square);
    const int32_t denominator = high_multiply(middle, line) + high_multiply(638450708, q);
    const int32_t fraction = high_multiply((int32_t)divide_by_power(numerator, 6),
                                           one_over_one_plus(denominator));
    return shift_left_saturating(high_multiply(power, 1488522236) + fraction, 1);
}
/* ---- row_largest.c ------------------------------------------------------- */
/* Largest of `length` codes that lie `step` apart. */
static int32_t row_largest(const int8_t *row, int32_t length, int32_t step)
{
    int32_t largest = row[0];
    for (int32_t index = 1; index < length; index++) {
        const int32_t code = row[index * step];
        largest = (code > largest) ? code : largest;
    }
    return largest;
}
/* ---- row_sum.c ----------------------------------------------------------- */
/* Sum of the exponentials of a row's distances from its largest code, 19 bits behind the point. */
static uint32_t row_sum(const int8_t *row, int32_t length, int32_t step, int32_t largest,
                        const int32_t *exponentials)
{
    uint32_t sum = 0;
    for (int32_t index = 0; index < length; index++) {
        sum += (uint32_t)divide_by_power(exponentials[largest - row[index * step]], 12);
    }
    return sum;
}
