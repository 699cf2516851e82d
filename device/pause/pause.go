// Package pause writes the program that runs in a pod's sandbox container, in machine code for each
// architecture. It starts nothing. Package agent calls it.
package pause

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"

	"github.com/google/renameio/v2"
)

// Target is the program's path in its container.
const Target = "/flotilla-pause"

// Program returns a static ELF executable of about 200 bytes that waits for SIGTERM, SIGINT or
// SIGQUIT and exits with 0. It needs no file of its image, uses one page of memory, and does not
// change with the agent.
//
// The program blocks the signals and fetches them (rt_sigtimedwait), since the kernel drops an
// unhandled signal to process 1 but not a blocked one. It ignores SIGCHLD, so that the kernel reaps
// orphans.
func Program(goarch string) ([]byte, error) {
	switch goarch {
	case "amd64":
		return elf(62, 0, pauseAMD64()), nil
	case "arm64":
		return elf(183, 0, pauseARM64()), nil
	case "arm":
		return elf(40, 0x05000000, pauseARM()), nil
	}
	return nil, fmt.Errorf(
		"make the sandbox program: architecture %s is not supported, only amd64, arm64 and arm; use pods with one container",
		goarch)
}

// Write writes the program into dir unless it is already there.
func Write(dir, goarch string) (string, error) {
	path := filepath.Join(dir, "pause")
	program, err := Program(goarch)
	if err != nil {
		return "", err
	}
	if have, err := os.ReadFile(path); err == nil && bytes.Equal(have, program) {
		return path, nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("write the sandbox program: %w", err)
	}
	if err := renameio.WriteFile(path, program, 0o555, renameio.IgnoreUmask()); err != nil {
		return "", fmt.Errorf("write the sandbox program: %w", err)
	}
	return path, nil
}

// elf wraps code, which starts right after the headers, into an executable with one segment.
func elf(machine uint16, flags uint32, code []byte) []byte {
	var b bytes.Buffer
	put := func(vs ...any) {
		for _, v := range vs {
			_ = binary.Write(&b, binary.LittleEndian, v) // writing to a buffer cannot fail
		}
	}
	const base, align = 0x400000, 0x10000 // 64 KiB, the largest page size of arm64
	if machine == 40 {
		const head = 52 + 32
		size := uint32(head + len(code))
		put([]byte{0x7f, 'E', 'L', 'F', 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0})
		put(uint16(2), machine, uint32(1), uint32(base+head), uint32(52), uint32(0), flags, uint16(52), uint16(32),
			uint16(1), uint16(0), uint16(0), uint16(0))
		put(uint32(1), uint32(0), uint32(base), uint32(base), size, size, uint32(5), uint32(align))
	} else {
		const head = 64 + 56
		size := uint64(head + len(code))
		put([]byte{0x7f, 'E', 'L', 'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0})
		put(uint16(2), machine, uint32(1), uint64(base+head), uint64(64), uint64(0), flags, uint16(64), uint16(56),
			uint16(1), uint16(0), uint16(0), uint16(0))
		put(uint32(1), uint32(5), uint64(0), uint64(base), uint64(base), size, size, uint64(align))
	}
	b.Write(code)
	return b.Bytes()
}

// action is the kernel's struct sigaction for SIG_IGN, the same on every architecture.
var action = append([]byte{1}, make([]byte, 31)...)

// signals is the kernel's set of SIGINT, SIGQUIT and SIGTERM: bit n-1 for signal n.
var signals = []byte{0x06, 0x40, 0, 0, 0, 0, 0, 0}

func pauseAMD64() []byte {
	code := []byte{
		0xbf, 17, 0, 0, 0, //                     mov edi, SIGCHLD
		0x48, 0x8d, 0x35, 0, 0, 0, 0, //          lea rsi, [rip+action]
		0x31, 0xd2, //                            xor edx, edx
		0x41, 0xba, 8, 0, 0, 0, //                mov r10d, 8
		0xb8, 13, 0, 0, 0, //                     mov eax, rt_sigaction
		0x0f, 0x05, //                            syscall; the offsets below count from here, at 27
		0x31, 0xff, //                         0  xor edi, edi            SIG_BLOCK
		0x48, 0x8d, 0x35, 0, 0, 0, 0, //       2  lea rsi, [rip+signals]
		0x31, 0xd2, //                         9  xor edx, edx
		0x41, 0xba, 8, 0, 0, 0, //            11  mov r10d, 8
		0xb8, 14, 0, 0, 0, //                 17  mov eax, rt_sigprocmask
		0x0f, 0x05, //                        22  syscall
		0x48, 0x8d, 0x3d, 0, 0, 0, 0, //      24  lea rdi, [rip+signals]
		0x31, 0xf6, //                        31  xor esi, esi
		0x31, 0xd2, //                        33  xor edx, edx
		0x41, 0xba, 8, 0, 0, 0, //            35  mov r10d, 8
		0xb8, 128, 0, 0, 0, //                41  mov eax, rt_sigtimedwait
		0x0f, 0x05, //                        46  syscall
		0x83, 0xf8, 0xfc, //                  48  cmp eax, -EINTR
		0x74, 0xe3, //                        51  je 24
		0x31, 0xff, //                        53  xor edi, edi
		0xb8, 231, 0, 0, 0, //                55  mov eax, exit_group
		0x0f, 0x05, //                        60  syscall
	}
	binary.LittleEndian.PutUint32(code[8:], uint32(len(code)+len(signals)-12))
	binary.LittleEndian.PutUint32(code[27+5:], uint32(len(code)-27-9))
	binary.LittleEndian.PutUint32(code[27+27:], uint32(len(code)-27-31))
	return append(append(code, signals...), action...)
}

func pauseARM64() []byte {
	const n = 23 // number of instructions; signals follows them, and action two words later
	movz := func(reg, v uint32) uint32 { return 0xd2800000 | v<<5 | reg }
	adr := func(at, reg uint32) uint32 { return 0x10000000 | (n-at)<<5 | reg } // the distance is a multiple of 4
	return words([]uint32{
		// rt_sigaction(SIGCHLD, action, 0, 8)
		movz(0, 17), adr(1, 1) + 2<<5, movz(2, 0), movz(3, 8), movz(8, 134), 0xd4000001,
		movz(0, 0), adr(7, 1), movz(2, 0), movz(3, 8), movz(8, 135), 0xd4000001, // rt_sigprocmask(SIG_BLOCK, signals, 0, 8)
		adr(12, 0), movz(1, 0), movz(2, 0), movz(3, 8), movz(8, 137), 0xd4000001, // rt_sigtimedwait(signals, 0, 0, 8)
		0x3100101f,                               // cmn w0, #EINTR
		0x54000000 | (0x7ffff&(1<<19-(13-6)))<<5, // b.eq 12
		movz(0, 0), movz(8, 94), 0xd4000001,      // exit_group(0)
	})
}

func pauseARM() []byte {
	const n = 23
	mov := func(reg, v uint32) uint32 { return 0xe3a00000 | reg<<12 | v }
	adr := func(at, reg uint32) uint32 { return 0xe28f0000 | reg<<12 | (n-at)*4 - 8 } // add reg, pc, #…
	return words([]uint32{
		mov(0, 17), adr(1, 1) + 8, mov(2, 0), mov(3, 8), mov(7, 174), 0xef000000, // rt_sigaction
		mov(0, 0), adr(7, 1), mov(2, 0), mov(3, 8), mov(7, 175), 0xef000000, // rt_sigprocmask
		adr(12, 0), mov(1, 0), mov(2, 0), mov(3, 8), mov(7, 177), 0xef000000, // rt_sigtimedwait
		0xe3700004, // cmn r0, #EINTR
		0x0a000000 | (0xffffff & (1<<24 - 7 - 2)), // beq 6
		mov(0, 0), mov(7, 248), 0xef000000, // exit_group(0)
	})
}

func words(code []uint32) []byte {
	out := make([]byte, 0, 4*len(code)+len(signals))
	for _, w := range code {
		out = binary.LittleEndian.AppendUint32(out, w)
	}
	return append(append(out, signals...), action...)
}
