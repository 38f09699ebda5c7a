/*
 * The exported dlopen: asks hr_dlopen_lead which name to open and jumps to the C library's dlopen, which so sees the job's own
 * return address: the caller's RUNPATH and namespace count, as without us.
 */
#if defined(__x86_64__)

    .text
    .globl dlopen
    .type dlopen, @function
dlopen:
    .cfi_startproc
    endbr64
    push %rsi
    .cfi_adjust_cfa_offset 8
    mov 8(%rsp), %rdx
    mov %rdi, (%rsp)
    push %rsi
    .cfi_adjust_cfa_offset 8
    sub $8, %rsp
    .cfi_adjust_cfa_offset 8
    call hr_dlopen_lead
    mov %rax, 16(%rsp)
    call hr_loader_real_dlopen
    add $8, %rsp
    .cfi_adjust_cfa_offset -8
    pop %rsi
    .cfi_adjust_cfa_offset -8
    pop %rdi
    .cfi_adjust_cfa_offset -8
    jmp *%rax
    .cfi_endproc
    .size dlopen, . - dlopen

#elif defined(__aarch64__)

    .text
    .globl dlopen
    .type dlopen, %function
dlopen:
    .cfi_startproc
    hint #34 /* bti c */
    stp x29, x30, [sp, #-32]!
    .cfi_adjust_cfa_offset 32
    .cfi_rel_offset x29, 0
    .cfi_rel_offset x30, 8
    mov x29, sp
    str x1, [sp, #24]
    mov x2, x30
    bl hr_dlopen_lead
    str x0, [sp, #16]
    bl hr_loader_real_dlopen
    mov x16, x0
    ldp x0, x1, [sp, #16]
    ldp x29, x30, [sp], #32
    .cfi_adjust_cfa_offset -32
    .cfi_restore x29
    .cfi_restore x30
    br x16
    .cfi_endproc
    .size dlopen, . - dlopen

#else
#error "the dlopen wrapper is written for x86-64 and aarch64"
#endif

    .section .note.GNU-stack, "", %progbits
