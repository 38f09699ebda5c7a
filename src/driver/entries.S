/*
 * The exported forwarders, and the stubs that every slot of hr_drv points at until the driver is loaded. Both are tail jumps: the
 * driver sees the job's own return address and arguments, whatever their number and types.
 */
#include "binder.inc"

    .text
    HR_BINDER hr_lazy_bind, hr_driver_load, hr_drv

#if defined(__x86_64__)

    .macro HR_LAZY name, index
    .globl hr_lazy_\name
    .hidden hr_lazy_\name
    .type hr_lazy_\name, @function
hr_lazy_\name:
    .cfi_startproc
    endbr64
    movl $\index, %r11d
    jmp hr_lazy_bind
    .cfi_endproc
    .size hr_lazy_\name, . - hr_lazy_\name
    .endm

    .macro HR_FORWARD name, index
    .globl \name
    .type \name, @function
\name:
    .cfi_startproc
    endbr64
    jmp *hr_drv + 8 * \index(%rip)
    .cfi_endproc
    .size \name, . - \name
    .endm

#elif defined(__aarch64__)

    .macro HR_LAZY name, index
    .globl hr_lazy_\name
    .hidden hr_lazy_\name
    .type hr_lazy_\name, %function
hr_lazy_\name:
    .cfi_startproc
    hint #34 /* bti c */
    mov x17, #\index
    b hr_lazy_bind
    .cfi_endproc
    .size hr_lazy_\name, . - hr_lazy_\name
    .endm

    .macro HR_FORWARD name, index
    .globl \name
    .type \name, %function
\name:
    .cfi_startproc
    hint #34
    adrp x16, hr_drv + 8 * \index
    ldr x16, [x16, :lo12:hr_drv + 8 * \index]
    br x16
    .cfi_endproc
    .size \name, . - \name
    .endm

#endif

#include "hr_entries.inc"

    .section .note.GNU-stack, "", %progbits
