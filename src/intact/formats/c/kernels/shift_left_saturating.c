/* value * 2^exponent, saturated. */
static int32_t shift_left_saturating(int32_t value, int32_t exponent)
{
    const int64_t result = value * ((int64_t)1 << exponent);
    if (result > INT32_MAX) {
        return INT32_MAX;
    }
    return (result < INT32_MIN) ? INT32_MIN : (int32_t)result;
}
