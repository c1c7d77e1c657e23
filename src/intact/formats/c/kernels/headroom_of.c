/* Zero bits above the highest one of a positive number. */
static int32_t headroom_of(uint32_t value)
{
    int32_t headroom = 0;
    while ((value << headroom) < 0x80000000U) {
        headroom++;
    }
    return headroom;
}
