/* value / 2^exponent, rounded half away from zero; exponent is 0 to 62. */
static int64_t divide_by_power(int64_t value, int32_t exponent)
{
    if (exponent == 0) {
        return value;
    }
    return (value + ((int64_t)1 << (exponent - 1)) - (value < 0)) >> exponent;
}
