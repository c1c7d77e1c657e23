/* The signed number that has these 32 bits (two's complement). */
static int32_t signed_bits(uint32_t bits)
{
    return (bits <= 0x7fffffffU) ? (int32_t)bits : -(int32_t)(0xffffffffU - bits) - 1;
}
