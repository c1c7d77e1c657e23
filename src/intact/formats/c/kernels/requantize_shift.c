/* value / 2^shift, rounded @ROUNDING@ and saturated; a negative shift is to the left. */
static int32_t requantize_@KIND@(int64_t value, int32_t shift)
{
    int64_t result = value;
    if (shift <= 0) {
        if (value > INT32_MAX || value < INT32_MIN) {
            return (value < 0) ? INT32_MIN : INT32_MAX;
        }
        result = value * ((int64_t)1 << -shift);
    } else {
        const int64_t half = (int64_t)1 << (shift - 1);
        result = (value + @NUDGE@) >> shift;
    }
    if (result < INT32_MIN) {
        return INT32_MIN;
    }
    return (result > INT32_MAX) ? INT32_MAX : (int32_t)result;
}
