/* A scaled result as a code: output offset added, clamped. The sum cannot overflow. */
static int8_t clamp_code(int32_t value, int32_t offset, int32_t lowest, int32_t highest)
{
    if (value <= lowest - offset) {
        return (int8_t)lowest;
    }
    if (value >= highest - offset) {
        return (int8_t)highest;
    }
    return (int8_t)(value + offset);
}
