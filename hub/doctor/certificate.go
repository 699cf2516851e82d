package doctor

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"flotilla.dev/hub/pki"
)

// certificates checks every certificate in pki/.
func (p Hub) certificates() (all []Finding) {
	dir := filepath.Join(p.Config.DataDir, "pki")
	files, _ := fs.Glob(os.DirFS(dir), "*.crt")
	own := []string{"root.crt", "intermediate.crt"}
	for _, name := range own {
		if !slices.Contains(files, name) {
			all = append(all, Finding{Fail, "certificates", "pki/" + name + " not found",
				"restore the directory pki from a copy; devices trust the hub by it"})
		}
	}
	for _, file := range files {
		name := "pki/" + file
		text, err := os.ReadFile(filepath.Join(dir, file))
		if err != nil {
			all = append(all, Finding{Fail, "certificates", err.Error(), "run this as the user of the hub, or as root"})
			continue
		}
		all = append(all, p.certificate(name, text))
	}
	if Worst(all) == Fail { // the check of keys needs certificates
		return all
	}
	if err := pki.Look(p.Config.DataDir); err != nil {
		all = append(all, Finding{Fail, "certificates", err.Error(), startsNot})
	}
	return all
}

func (p Hub) certificate(name string, text []byte) Finding {
	block, _ := pem.Decode(text)
	if block == nil {
		return Finding{Fail, "certificates", name + " has no certificate", "restore the directory pki from a copy"}
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return Finding{Fail, "certificates", fmt.Sprintf("%s cannot be read: %v", name, err),
			"restore the directory pki from a copy"}
	}
	left, until := cert.NotAfter.Sub(p.Now), cert.NotAfter.Format(time.DateOnly)
	root := strings.HasPrefix(filepath.Base(name), "root")
	switch {
	case strings.Contains(name, "former") || strings.Contains(name, "cross"): // these may expire
	case p.Now.Before(cert.NotBefore.Add(-time.Hour)):
		return Finding{Fail, "certificates",
			fmt.Sprintf("%s is not valid before %s", name, cert.NotBefore.Format(time.DateOnly)),
			"set the clock of this machine, which is behind"}
	case left <= 0 && root:
		return Finding{Fail, "certificates", fmt.Sprintf("%s expired on %s", name, until),
			"set the clock if it is wrong; else run `flotilla-hub ca rotate --root` and join the devices again"}
	case left <= 0:
		return Finding{Fail, "certificates", fmt.Sprintf("%s expired on %s", name, until),
			"set the clock if it is wrong; else start the hub: it issues a new one"}
	case left < soon && root:
		return Finding{Warn, "certificates", fmt.Sprintf("%s expires on %s", name, until),
			"run `flotilla-hub ca rotate --root` while the devices still trust it"}
	case left < tooSoon:
		return Finding{Warn, "certificates", fmt.Sprintf("%s expires on %s; the hub should have renewed it", name, until),
			"start the hub and see its log"}
	}
	return Finding{OK, "certificates", fmt.Sprintf("%s is valid until %s", name, until), ""}
}
