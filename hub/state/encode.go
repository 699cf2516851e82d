package state

import (
	"bytes"
	"encoding/json"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
)

// protoMagic is the prefix of Kubernetes' protobuf encoding, in which a runtime.Unknown wraps the
// object.
var protoMagic = []byte("k8s\x00")

// InProto tells whether an encoded object is protobuf; otherwise it is JSON.
func InProto(data []byte) bool { return bytes.HasPrefix(data, protoMagic) }

// Encode encodes an object for the store: as protobuf if its row says so, otherwise as JSON.
func Encode(o Object) ([]byte, error) {
	r := KindOf(o).Row()
	if r == nil || !r.Proto {
		return json.Marshal(o)
	}
	raw, err := o.(interface{ Marshal() ([]byte, error) }).Marshal()
	if err != nil {
		return nil, err
	}
	gvk := r.Kind.GroupVersionKind()
	u := runtime.Unknown{Raw: raw, TypeMeta: runtime.TypeMeta{APIVersion: gvk.GroupVersion().String(), Kind: gvk.Kind}}
	data := make([]byte, len(protoMagic)+u.Size())
	copy(data, protoMagic)
	_, err = u.MarshalTo(data[len(protoMagic):])
	return data, err
}

// Decode decodes what Encode returned. Older hubs wrote JSON for every kind.
func Decode(data []byte, into Object) error {
	data, ok := bytes.CutPrefix(data, protoMagic)
	if !ok {
		return json.Unmarshal(data, into)
	}
	o, ok := into.(interface{ Unmarshal([]byte) error })
	if !ok {
		return fmt.Errorf("%T has no protobuf form", into)
	}
	var u runtime.Unknown
	if err := u.Unmarshal(data); err != nil {
		return err
	}
	return o.Unmarshal(u.Raw)
}
