package resource

import (
	"bytes"
	"encoding/json"

	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"
)

// Marshal encodes an object. The object's kind must be set.
func Marshal(o runtime.Object, media string) ([]byte, error) {
	switch media {
	case MediaProto:
		var b bytes.Buffer
		if err := ProtoCodec.Encode(o, &b); err != nil {
			return nil, err
		}
		return b.Bytes(), nil
	case MediaYAML:
		return yaml.Marshal(o)
	}
	var b bytes.Buffer // one growing buffer, since a fleet's list has tens of megabytes
	err := json.NewEncoder(&b).Encode(o)
	return b.Bytes(), err
}
