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
