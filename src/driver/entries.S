/*
 * The exported forwarders, and the stubs that every slot of hr_drv points at until the driver is loaded. Both are tail jumps: the
 * driver sees the job's own return address and arguments, whatever their number and types.
 */
#if defined(__x86_64__)

    .text

/* Index in r11. Keeps every register that may carry an argument, loads the driver, which fills all slots, and goes on. */
    .hidden hr_lazy_bind
    .type hr_lazy_bind, @function
hr_lazy_bind:
    .cfi_startproc
    push %rbp
    .cfi_adjust_cfa_offset 8
    .cfi_rel_offset %rbp, 0
    mov %rsp, %rbp
    .cfi_def_cfa_register %rbp
    sub $208, %rsp
    mov %rdi, 0(%rsp)
    mov %rsi, 8(%rsp)
    mov %rdx, 16(%rsp)
    mov %rcx, 24(%rsp)
    mov %r8, 32(%rsp)
    mov %r9, 40(%rsp)
    mov %r11, 48(%rsp)
    mov %rax, 56(%rsp)
    movups %xmm0, 64(%rsp)
    movups %xmm1, 80(%rsp)
    movups %xmm2, 96(%rsp)
    movups %xmm3, 112(%rsp)
    movups %xmm4, 128(%rsp)
    movups %xmm5, 144(%rsp)
    movups %xmm6, 160(%rsp)
    movups %xmm7, 176(%rsp)
    call hr_driver_load
    movups 64(%rsp), %xmm0
    movups 80(%rsp), %xmm1
    movups 96(%rsp), %xmm2
    movups 112(%rsp), %xmm3
    movups 128(%rsp), %xmm4
    movups 144(%rsp), %xmm5
    movups 160(%rsp), %xmm6
    movups 176(%rsp), %xmm7
    mov 0(%rsp), %rdi
    mov 8(%rsp), %rsi
    mov 16(%rsp), %rdx
    mov 24(%rsp), %rcx
    mov 32(%rsp), %r8
    mov 40(%rsp), %r9
    mov 48(%rsp), %r11
    mov 56(%rsp), %rax
    leave
    .cfi_def_cfa %rsp, 8
    .cfi_restore %rbp
    lea hr_drv(%rip), %r10
    jmp *(%r10,%r11,8)
    .cfi_endproc
    .size hr_lazy_bind, . - hr_lazy_bind

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

    .text

/* Index in x17. As above. */
    .hidden hr_lazy_bind
    .type hr_lazy_bind, %function
hr_lazy_bind:
    .cfi_startproc
    stp x29, x30, [sp, #-224]!
    .cfi_adjust_cfa_offset 224
    .cfi_rel_offset x29, 0
    .cfi_rel_offset x30, 8
    mov x29, sp
    stp x0, x1, [sp, #16]
    stp x2, x3, [sp, #32]
    stp x4, x5, [sp, #48]
    stp x6, x7, [sp, #64]
    stp x8, x17, [sp, #80]
    stp q0, q1, [sp, #96]
    stp q2, q3, [sp, #128]
    stp q4, q5, [sp, #160]
    stp q6, q7, [sp, #192]
    bl hr_driver_load
    ldp q0, q1, [sp, #96]
    ldp q2, q3, [sp, #128]
    ldp q4, q5, [sp, #160]
    ldp q6, q7, [sp, #192]
    ldp x0, x1, [sp, #16]
    ldp x2, x3, [sp, #32]
    ldp x4, x5, [sp, #48]
    ldp x6, x7, [sp, #64]
    ldp x8, x17, [sp, #80]
    ldp x29, x30, [sp], #224
    .cfi_adjust_cfa_offset -224
    .cfi_restore x29
    .cfi_restore x30
    adrp x16, hr_drv
    add x16, x16, :lo12:hr_drv
    ldr x16, [x16, x17, lsl #3]
    br x16
    .cfi_endproc
    .size hr_lazy_bind, . - hr_lazy_bind

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

#else
#error "forwarders are written for x86-64 and aarch64"
#endif

#include "hr_entries.inc"

    .section .note.GNU-stack, "", %progbits
