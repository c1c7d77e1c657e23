/* Zero bits above the highest one of a positive number. */
static int32_t headroom_of(int32_t value)
{
    int32_t headroom = 0;
    while (((uint32_t)value << headroom) < 0x80000000U) {
        headroom++;
    }
    return headroom;
}
