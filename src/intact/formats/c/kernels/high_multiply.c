/* a * b / 2^31, rounded half up; only the square of INT32_MIN does not fit and saturates. */
static int32_t high_multiply(int32_t a, int32_t b)
{
    if (a == INT32_MIN && b == INT32_MIN) {
        return INT32_MAX;
    }
    return (int32_t)(((int64_t)a * b + ((int64_t)1 << 30)) >> 31);
}
