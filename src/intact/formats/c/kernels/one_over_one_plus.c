/* 1 / (1 + x) of x in [0, 1], both fractions of 2^31: three steps of Newton's method on half the
   denominator, with 29 bits behind the point, from 48/17 - 32/17 * half. */
static int32_t one_over_one_plus(int32_t x)
{
    const int32_t half = (int32_t)divide_by_power((int64_t)x + INT32_MAX, 1);
    int32_t guess = 1515870810 + high_multiply(half, -1010580540);
    for (int32_t step = 0; step < 3; step++) {
        const int32_t error = ((int32_t)1 << 29) - high_multiply(half, guess);
        guess += shift_left_saturating(high_multiply(guess, error), 2);
    }
    return shift_left_saturating(guess, 1);
}
