// Program generate makes the API's OpenAPI documents from Kubernetes' own. It keeps the served
// paths and the schemas that they need, marks fields that devices do not support, and adds the
// hub's own kinds.
//
// `go generate` in package openapi runs it; it writes into that directory. It downloads the
// documents as data through the Go module proxy, so the hub contains none of Kubernetes' code.
package main

import (
	"bytes"
	"compress/gzip"
	"crypto/sha512"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	openapi_v2 "github.com/google/gnostic-models/openapiv2"
	"google.golang.org/protobuf/proto"
)

// source is the module with the documents.
const source = "k8s.io/kubernetes@v1.37.0"

func main() {
	log.SetFlags(0)
	if err := run(); err != nil {
		log.Fatal(err)
	}
}

func run() error {
	module, err := download()
	if err != nil {
		return err
	}
	dir := filepath.Join(module, "api", "openapi-spec")
	values, err := enums(module)
	if err != nil {
		return err
	}
	for _, old := range []string{"v2.json.gz", "v2.pb.gz", "v3", "schemas.json.gz", "index.json"} {
		if err := os.RemoveAll(old); err != nil {
			return err
		}
	}
	if err := os.Mkdir("v3", 0o755); err != nil {
		return err
	}
	hashes := map[string]string{}
	schemas := object{}
	for _, version := range versions() {
		d, err := version3(dir, version, values)
		if err != nil {
			return fmt.Errorf("make the document of %s: %w", version, err)
		}
		maps.Copy(schemas, d.schemas())
		b := d.bytes()
		name := strings.TrimPrefix(root(version), "/")
		hashes["v3/"+name] = hash(b)
		if err := write("v3/"+strings.ReplaceAll(name, "/", "__")+".json.gz", b); err != nil {
			return err
		}
	}
	v2, err := version2(dir, values)
	if err != nil {
		return fmt.Errorf("make the document of version 2: %w", err)
	}
	b := v2.bytes()
	hashes["v2"] = hash(b)
	if err := write("v2.json.gz", b); err != nil {
		return err
	}
	doc, err := openapi_v2.ParseDocument(b)
	if err != nil {
		return fmt.Errorf("read the document of version 2: %w", err)
	}
	if b, err = (proto.MarshalOptions{Deterministic: true}).Marshal(doc); err != nil {
		return err
	}
	hashes["v2.pb"] = hash(b)
	if err := write("v2.pb.gz", b); err != nil {
		return err
	}
	stripDescriptions(schemas)
	if err := write("schemas.json.gz", document{object: schemas}.bytes()); err != nil {
		return err
	}
	index, err := json.MarshalIndent(hashes, "", "\t")
	if err != nil {
		return err
	}
	return os.WriteFile("index.json", append(index, '\n'), 0o644)
}

// versions returns the served versions without repetition, sorted.
func versions() []string {
	var out []string
	for _, r := range served {
		out = append(out, r.version)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// download fetches the source through the Go module proxy and returns its directory.
func download() (string, error) {
	tmp, err := os.MkdirTemp("", "openapi")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(tmp) }()
	if err := os.WriteFile(filepath.Join(tmp, "go.mod"), []byte("module scratch\n"), 0o644); err != nil {
		return "", err
	}
	cmd := exec.Command("go", "mod", "download", "-json", source)
	cmd.Dir, cmd.Stderr = tmp, os.Stderr
	out, err := cmd.Output()
	var module struct{ Dir, Error string }
	if e := json.Unmarshal(out, &module); e != nil || err != nil {
		return "", fmt.Errorf("download %s: %v %v %s", source, err, e, module.Error)
	}
	return module.Dir, nil
}

func hash(b []byte) string {
	sum := sha512.Sum512(b)
	return strings.ToUpper(hex.EncodeToString(sum[:]))
}

func write(name string, b []byte) error {
	var out bytes.Buffer
	z, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	if err != nil {
		return err
	}
	if _, err := z.Write(b); err != nil {
		return err
	}
	if err := z.Close(); err != nil {
		return err
	}
	return os.WriteFile(name, out.Bytes(), 0o644)
}
