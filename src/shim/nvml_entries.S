/*
 * The exported functions of NVML. Each jumps to the real one through hr_nvml_real, which is empty until one is called: then the real library is opened.
 */
#include "../driver/binder.inc"

    .text
    HR_BINDER hr_nvml_bind, hr_nvml_load, hr_nvml_real

#if defined(__x86_64__)

    .macro HR_NVML name, index
    .globl \name
    .type \name, @function
\name:
    .cfi_startproc
    endbr64
    mov hr_nvml_real + 8 * \index(%rip), %r11
    test %r11, %r11
    je 1f
    jmp *%r11
1:  movl $\index, %r11d
    jmp hr_nvml_bind
    .cfi_endproc
    .size \name, . - \name
    .endm

#elif defined(__aarch64__)

    .macro HR_NVML name, index
    .globl \name
    .type \name, %function
\name:
    .cfi_startproc
    hint #34 /* bti c */
    adrp x16, hr_nvml_real + 8 * \index
    ldr x16, [x16, :lo12:hr_nvml_real + 8 * \index]
    cbz x16, 1f
    br x16
1:  mov x17, #\index
    b hr_nvml_bind
    .cfi_endproc
    .size \name, . - \name
    .endm

#endif

/* The index is that of the row. A hook's own is only counted. */
    .macro HR_NVML_SKIP index
    .endm
#define NVML(name) HR_NVML name, __COUNTER__
#define NVML_HOOK(name) HR_NVML_SKIP __COUNTER__
#include "../../hooks/nvml.def"

    .section .note.GNU-stack, "", %progbits
