package bound

import (
	"bytes"
	"reflect"
	"strconv"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
)

// protoMagic begins Kubernetes' protobuf: an envelope (runtime.Unknown) whose second field is the
// object.
var protoMagic = []byte("k8s\x00")

// Proto checks that decoding Kubernetes' protobuf into a value of into's type has a bounded cost,
// see JSON.
func Proto(data []byte, into any) error {
	data, ok := bytes.CutPrefix(data, protoMagic)
	if !ok || !suspicious(data, nil) {
		return nil
	}
	p := protoWalk{fields: map[reflect.Type]map[protowire.Number]reflect.Type{}, count: new(Count)}
	return each(data, func(num protowire.Number, body []byte) error {
		if num == 2 {
			return p.message(body, typeOf(into))
		}
		return nil
	})
}

// each calls fn for every length-delimited field of a message. It stops at malformed input, which
// the decoder reports later.
func each(data []byte, fn func(num protowire.Number, body []byte) error) error {
	for len(data) > 0 {
		num, kind, n := protowire.ConsumeTag(data)
		if n < 0 {
			return nil
		}
		data = data[n:]
		n = protowire.ConsumeFieldValue(num, kind, data)
		if n < 0 {
			return nil
		}
		if kind == protowire.BytesType {
			body, _ := protowire.ConsumeBytes(data)
			if err := fn(num, body); err != nil {
				return err
			}
		}
		data = data[n:]
	}
	return nil
}

// A protoWalk goes through messages and their types together.
type protoWalk struct {
	fields map[reflect.Type]map[protowire.Number]reflect.Type // types of each type's fields, by field number
	count  *Count                                             // counts the visited values
}

func (p protoWalk) message(data []byte, t reflect.Type) error {
	for t != nil && (t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice) {
		t = t.Elem()
	}
	if t == nil { // decoders skip an unknown field
		return nil
	}
	p.count.Values++
	if t.Kind() == reflect.Struct {
		p.count.Objects++
	}
	switch {
	case t == quantityType:
		return each(data, func(num protowire.Number, body []byte) error {
			if num == 1 {
				return QuantityText(string(body))
			}
			return nil
		})
	case t == fieldsV1 || t == rawExtension: // JSON in bytes, which is decoded later
		return each(data, func(_ protowire.Number, body []byte) error {
			in := CountJSON(body)
			p.count.Objects += in.Objects
			p.count.Values += in.Values
			return nil
		})
	case t.Kind() == reflect.Map:
		return each(data, func(num protowire.Number, body []byte) error {
			if num == 2 {
				return p.message(body, t.Elem())
			}
			return nil
		})
	case t.Kind() != reflect.Struct:
		return nil
	}
	fields, ok := p.fields[t]
	if !ok {
		fields = map[protowire.Number]reflect.Type{}
		for i := range t.NumField() {
			f := t.Field(i)
			if parts := strings.Split(f.Tag.Get("protobuf"), ","); len(parts) > 1 {
				if num, err := strconv.Atoi(parts[1]); err == nil {
					fields[protowire.Number(num)] = f.Type
				}
			}
		}
		p.fields[t] = fields
	}
	return each(data, func(num protowire.Number, body []byte) error { return p.message(body, fields[num]) })
}
