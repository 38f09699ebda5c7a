// Device code that needs the system: function pointers, recursion, malloc, printf, assert, tables with initial values.
#define GLOBAL extern "C" __attribute__((global))
#define DEVICE __attribute__((device))
#define CONSTANT __attribute__((constant))
#define TX __nvvm_read_ptx_sreg_tid_x()

extern "C" DEVICE void *malloc(unsigned long);
extern "C" DEVICE void free(void *);
extern "C" DEVICE int printf(const char *, ...);
extern "C" DEVICE void __assertfail(const char *message, const char *file, unsigned line, const char *function,
                                    unsigned long char_bytes);

struct pair {
    long a;
    int b, c;
};
typedef struct pair (*maker)(int, struct pair);

static DEVICE __attribute__((noinline)) struct pair first(int x, struct pair p) {
    p.a += x;
    p.b = (int)p.a * 2;
    return p;
}
static DEVICE __attribute__((noinline)) struct pair second(int x, struct pair p) {
    p.c = x - p.c;
    return first(p.c, p);
}

DEVICE maker makers[3] = {first, second, first};

static DEVICE __attribute__((noinline)) int fibonacci(int n) {
    return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2);
}

struct node {
    struct node *next;
    int value;
};
DEVICE struct node tail = {0, 5}, middle = {&tail, 6};
CONSTANT struct node head = {&middle, 7};
DEVICE const char *const names[] = {"zero", "one", "two"};
DEVICE int matrix[3][4] = {{1, 2}, {}, {9, 10, 11, 12}};
GLOBAL void call_through_tables(int *out, int which) {
    struct pair p = {10, 20, 30};
    p = makers[(which + TX) % 3]((int)TX, p);
    out[4 * TX] = (int)p.a;
    out[4 * TX + 1] = p.b;
    out[4 * TX + 2] = p.c;
    out[4 * TX + 3] = fibonacci((int)(TX % 8));
}

GLOBAL void read_tables(int *out) {
    int n = 0;
    for (const struct node *at = &head; at; at = at->next)
        n = 10 * n + at->value;
    out[0] = n;
    out[1] = names[2][1];
    for (int i = 0; i < 12; i++)
        out[2 + i] = matrix[i / 4][i % 4];
}

GLOBAL void list_push(struct node **lists, int rounds) {
    for (int i = 0; i < rounds; i++) {
        struct node *n = (struct node *)malloc(sizeof(struct node) + TX);
        if (!n)
            __assertfail("n", "system.cu", 77, "list_push", 1);
        n->next = lists[TX];
        n->value = i * 100 + (int)TX;
        lists[TX] = n;
    }
}

GLOBAL void list_pop(struct node **lists, int *sums) {
    while (lists[TX]) {
        struct node *n = lists[TX];
        sums[TX] += n->value;
        lists[TX] = n->next;
        free(n);
    }
}

GLOBAL void say(int *results, double x) {
    results[TX] = printf("%d: %s %5.2f|%-6ld|%c|%#x%%\n", (int)TX, names[TX % 3], x * TX, 123456789012l + TX, 'a' + TX, TX);
}

GLOBAL void check(int limit) {
    if ((int)TX >= limit)
        __assertfail("TX < limit", "system.cu", 104, "void check(int)", 1);
}
