int load_private(void)
{
    return 1;
}
