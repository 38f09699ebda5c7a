/* A library that only bears a name, and, with CALLER, a program that needs it. */
int nothing(void);

#ifdef CALLER
int main(void)
{
    return nothing();
}
#else
int nothing(void)
{
    return 0;
}
#endif
