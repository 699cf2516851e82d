package boothelper

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"

	"flotilla.dev/shared/fleet"
)

// Boot files of boards other than Raspberry Pis, kept in Files.Config.
const (
	uEnvTxt   = "uEnv.txt"
	customCfg = "custom.cfg" // the last file that a grub.cfg of grub-mkconfig reads (41_custom)
	grubCfg   = "grub.cfg"
	grubEnv   = "grubenv"
)

// render returns the files with the settings of b.
func render(live Files, b *fleet.BootConfig) (Files, error) {
	switch b.Backend {
	case fleet.BootConfigTxt:
		return renderConfigTxt(live, b)
	case fleet.BootUEnv:
		return renderUEnv(live, b)
	case fleet.BootGrub:
		return renderGrub(live, b)
	}
	return Files{}, fmt.Errorf("backend %s has no boot configuration", b.Backend)
}

// changes lists the lines and words that a change of the files adds and removes.
func changes(backend string, from, to Files) string {
	var was, is []string
	switch backend {
	case fleet.BootUEnv:
		was, is = strings.Fields(uEnvLine(from.Config)), strings.Fields(uEnvLine(to.Config))
	case fleet.BootGrub:
		was, is = strings.Fields(grubArgs(from.Config)), strings.Fields(grubArgs(to.Config))
	default:
		return diffConfigTxt(from, to)
	}
	var out strings.Builder
	for _, w := range subtract(was, is) {
		fmt.Fprintf(&out, "command line: -%s\n", w)
	}
	for _, w := range subtract(is, was) {
		fmt.Fprintf(&out, "command line: +%s\n", w)
	}
	return out.String()
}

// withSection appends Flotilla's section with these lines to a file that has no section.
func withSection(name string, base []byte, b *fleet.BootConfig, lines ...string) ([]byte, error) {
	head := fmt.Sprintf("# Flotilla has written these lines, from the board profile %s, revision %d.", b.Profile,
		b.Revision)
	record := recordMark + "{}"
	out := bytes.Clone(base)
	if n := len(out); n > 0 && out[n-1] != '\n' {
		out = append(out, '\n')
		record = recordMark + `{"break":true}`
	}
	for _, l := range slices.Concat([]string{beginMark, head, record}, lines, []string{endMark}) {
		out = append(out, l+"\n"...)
	}
	if len(out) > MaxConfigTxt {
		return nil, fmt.Errorf("%s would have %d bytes: at most %d are handled", name, len(out), MaxConfigTxt)
	}
	return out, nil
}

// withoutSection returns a file without Flotilla's section.
func withoutSection(name string, text []byte) ([]byte, error) {
	c, err := splitFile(name, text)
	if err != nil {
		return nil, err
	}
	return slices.Concat(c.before, c.after), nil
}

// uEnvLine returns the cmdline of uEnv.txt. The last one counts, since U-Boot imports the file line
// by line (env import -t).
func uEnvLine(text []byte) (line string) {
	for l := range strings.Lines(string(text)) {
		if v, ok := strings.CutPrefix(strings.TrimLeft(l, " \t"), "cmdline="); ok {
			line = strings.TrimRight(v, "\n")
		}
	}
	return line
}

// uEnvBootSelectors are the variables of uEnv.txt that change what the board's own scripts boot.
var uEnvBootSelectors = []string{"uenvcmd", "bootcmd", "boot_targets", "altbootcmd", "bootlimit", "bootcount",
	"upgrade_available"}

// checkUEnv returns an error if Flotilla must not change this uEnv.txt.
func checkUEnv(text []byte) error {
	if bytes.IndexByte(text, '\r') >= 0 {
		return errors.New(
			"uEnv.txt has Windows line endings, which U-Boot reads as part of the values: write it with Unix line endings")
	}
	for l := range strings.Lines(string(text)) {
		key, _, _ := strings.Cut(strings.TrimSpace(l), "=")
		if slices.Contains(uEnvBootSelectors, key) {
			return fmt.Errorf("uEnv.txt sets %s, which selects what is booted: another program manages the boot of this board",
				key)
		}
	}
	for _, w := range strings.Fields(uEnvLine(text)) {
		if key, _, _ := strings.Cut(w, "="); key == "init" || key == "rdinit" {
			return fmt.Errorf(
				"the cmdline of uEnv.txt starts %.60q instead of the system: this may be the image that flashes the eMMC", w)
		}
	}
	return nil
}

func renderUEnv(live Files, b *fleet.BootConfig) (Files, error) {
	if err := b.Validate(); err != nil {
		return Files{}, err
	}
	base, err := withoutSection(uEnvTxt, live.Config)
	if err == nil {
		err = checkUEnv(base)
	}
	if err != nil {
		return Files{}, err
	}
	was := uEnvLine(base)
	line := strings.TrimLeft((&record{}).change(was, b.Cmdline), " ")
	if line == was {
		return Files{Config: base}, nil
	}
	if len(line) > max(MaxCmdlineTxt, len(was)) {
		return Files{}, fmt.Errorf("the cmdline of uEnv.txt would have %d bytes: kernels read at most %d", len(line),
			MaxCmdlineTxt)
	}
	out, err := withSection(uEnvTxt, base, b, "cmdline="+line)
	return Files{Config: out}, err
}

// Names in GRUB's files. Each entry ends with ${flotilla_args} (see firmware-configs/grub), and the
// section in custom.cfg sets that variable. During a trial the section also has a block that takes
// flotilla_try from the environment block (grubenv) before the kernel starts. Where GRUB cannot
// write grubenv, save_env fails and GRUB boots without the trial.
const (
	grubSet     = "set flotilla_args="
	grubTry     = "flotilla_try"
	grubExport  = "export flotilla_args"
	grubBlock   = "# BEGIN trial"
	grubEnded   = "# END trial"
	grubTrialOf = "flotilla.trial=" // on the command line of a trial: Linux ignores unknown words with a dot
)

// trialName returns the name of a trial in GRUB's files and on the kernel's command line.
func trialName(digest string) string {
	digest = strings.TrimPrefix(digest, "sha256:")
	return digest[:min(len(digest), 16)]
}

// grubArgs returns the words that a custom.cfg adds to the command line outside of a trial.
func grubArgs(text []byte) string {
	c, err := splitFile(customCfg, text)
	if err != nil || !c.section {
		return ""
	}
	for l := range strings.Lines(string(text[len(c.before):])) {
		if v, ok := strings.CutPrefix(l, grubSet); ok {
			return strings.Trim(strings.TrimSpace(v), `"`)
		}
	}
	return ""
}

func grubSection(base []byte, b *fleet.BootConfig, args string) ([]byte, error) {
	return withSection(customCfg, base, b, grubSet+`"`+args+`"`, grubExport)
}

func renderGrub(live Files, b *fleet.BootConfig) (Files, error) {
	if err := b.Validate(); err != nil {
		return Files{}, err
	}
	base, err := withoutSection(customCfg, live.Config)
	if err != nil {
		return Files{}, err
	}
	if bytes.Contains(base, []byte("flotilla_")) {
		return Files{}, errors.New("custom.cfg uses Flotilla's variables outside of its section: remove those lines")
	}
	if len(b.Cmdline.Add) == 0 {
		return Files{Config: base}, nil
	}
	args := strings.Join(b.Cmdline.Add, " ") // bootValue allows no character that has a meaning in GRUB
	if len(args) > MaxCmdlineTxt {
		return Files{}, fmt.Errorf("%d bytes would be added to the command line: kernels read at most %d in all", len(args),
			MaxCmdlineTxt)
	}
	out, err := grubSection(base, b, args)
	return Files{Config: out}, err
}

// grubTrial returns the custom.cfg from before the trial with a block that tries the new one once.
func grubTrial(from, to Files, digest string) ([]byte, error) {
	text := from.Config
	c, err := splitFile(customCfg, text)
	if err == nil && !c.section {
		text, err = grubSection(text, &fleet.BootConfig{Profile: "none"}, "")
	}
	if err != nil {
		return nil, err
	}
	name := trialName(digest)
	args := strings.TrimSpace(grubArgs(to.Config) + " " + grubTrialOf + name)
	block := strings.Join([]string{
		grubBlock,
		`if [ "${` + grubTry + `}" = "` + name + `" ]; then`,
		"  set " + grubTry + "=",
		"  if save_env " + grubTry + "; then",
		"    " + grubSet + `"` + args + `"`,
		"  fi",
		"fi",
		grubEnded, "",
	}, "\n")
	at := bytes.LastIndex(text, []byte("\n"+grubExport+"\n"))
	if at < 0 {
		return nil, fmt.Errorf("the section of custom.cfg has no line %q: remove the section", grubExport)
	}
	return slices.Concat(text[:at+1], []byte(block), text[at+1:]), nil
}

// untried returns custom.cfg without the block of a trial.
func untried(text []byte) ([]byte, error) {
	begin, end := bytes.Index(text, []byte(grubBlock+"\n")), bytes.Index(text, []byte(grubEnded+"\n"))
	if begin < 0 || end < begin {
		return text, nil
	}
	text = slices.Concat(text[:begin], text[end+len(grubEnded)+1:])
	if grubArgs(text) != "" {
		return text, nil
	}
	return withoutSection(customCfg, text)
}

// checkGrub returns an error if Flotilla must not change this board's GRUB: grub.cfg must be
// written by grub-mkconfig.
func checkGrub(cfg, env []byte) error {
	text := string(cfg)
	switch {
	case strings.Contains(text, "blscfg"):
		return errors.New(
			"grub.cfg takes its entries from boot loader specification files (blscfg, as on Fedora): that is not supported")
	case !strings.Contains(text, "load_env"):
		return errors.New("grub.cfg does not read GRUB's environment block (load_env), so GRUB cannot try anything once: " +
			"write it with grub-mkconfig")
	}
	if err := grubTakes(text); err != nil {
		return err
	}
	_, err := setEnv(env, grubTry, "")
	return err
}

// grubTakes returns an error if the entries of a grub.cfg ignore flotilla_args.
func grubTakes(text string) error {
	if !strings.Contains(text, customCfg) {
		return errors.New("grub.cfg does not read custom.cfg: /etc/grub.d/41_custom is missing or not executable; put " +
			"it back and run update-grub")
	}
	entries, ours := 0, 0
	for l := range strings.Lines(text) {
		if f := strings.Fields(l); len(f) > 1 && (f[0] == "linux" || f[0] == "linuxefi") {
			entries++
			if slices.Contains(f, "${flotilla_args}") {
				ours++
			}
		}
	}
	if entries == 0 || ours == 0 {
		return errors.New("no entry of grub.cfg has ${flotilla_args}: put 90-flotilla.cfg into /etc/default/grub.d and " +
			"run update-grub once")
	}
	return nil
}

const (
	envHead = "# GRUB Environment Block\n"
	envSize = 1024
)

// setEnv sets a variable in GRUB's environment block, as grub-editenv does. An empty value removes
// the variable.
func setEnv(env []byte, key, value string) ([]byte, error) {
	if len(env) != envSize || !bytes.HasPrefix(env, []byte(envHead)) {
		return nil, errors.New("grubenv is not a GRUB environment block: create one with grub-editenv " +
			"/boot/grub/grubenv create")
	}
	body := bytes.TrimRight(env, "#")
	if len(body) == 0 || body[len(body)-1] != '\n' {
		return nil, errors.New("grubenv is damaged: create it again with grub-editenv /boot/grub/grubenv create")
	}
	var out []byte
	for l := range bytes.Lines(body) {
		if !bytes.HasPrefix(l, []byte(key+"=")) {
			out = append(out, l...)
		}
	}
	if value != "" {
		out = append(out, key+"="+value+"\n"...)
	}
	if len(out) > envSize {
		return nil, errors.New("grubenv is full: remove variables with grub-editenv /boot/grub/grubenv unset NAME")
	}
	return append(out, bytes.Repeat([]byte("#"), envSize-len(out))...), nil
}
