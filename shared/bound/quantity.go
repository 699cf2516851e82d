package bound

import (
	"fmt"
	"math/big"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
)

// Digits bounds a quantity: 0, or between 1e-18 and 1e18.
const Digits = 18

// most is the largest quantity. A larger unscaled value or scale is refused.
var most = new(big.Int).Exp(big.NewInt(10), big.NewInt(Digits), nil)

const written = 2 * Digits

// ParseQuantity parses a quantity such as 100Mi in bounded time.
func ParseQuantity(s string) (resource.Quantity, error) {
	if err := QuantityText(s); err != nil {
		return resource.Quantity{}, err
	}
	q, err := resource.ParseQuantity(s)
	if err != nil {
		return resource.Quantity{}, err
	}
	return q, Quantity(q)
}

// QuantityText checks that a text can be parsed as a quantity in bounded time. Text that is not a
// quantity passes, because the parser refuses it. Surrounding blanks are ignored, as in JSON.
func QuantityText(s string) error {
	s = strings.TrimSpace(s)
	if len(s) > MaxNumber {
		return fmt.Errorf("quantity %.20s… has %d characters, at most %d are read", s, len(s), MaxNumber)
	}
	at := strings.LastIndexAny(s, "eE")
	if at < 0 {
		return nil
	}
	exponent := strings.TrimLeft(strings.TrimLeft(s[at+1:], "+-"), "0")
	if strings.Trim(exponent, "0123456789") != "" {
		return nil // without an exponent: a suffix such as Ei, or not a quantity
	}
	if n, _ := strconv.Atoi(exponent); len(exponent) > 2 || n > written {
		return beyond(s)
	}
	return nil
}

// Quantity checks that a quantity is 0 or between 1e-18 and 1e18, in a form that is cheap to
// compare, add and encode. It checks only the form, because any arithmetic could be expensive.
func Quantity(q resource.Quantity) error {
	d := q.AsDec() // a copy: unscaled * 10^-scale
	scale, unscaled := int64(d.Scale()), d.UnscaledBig()
	if scale < -written || scale > written || unscaled.BitLen() > 256 {
		return beyond("with " + fmt.Sprint(-scale) + " decimal places")
	}
	if unscaled.Sign() == 0 {
		return nil
	}
	magnitude, ten := new(big.Int).Abs(unscaled), big.NewInt(10)
	power := new(big.Int).Exp(ten, big.NewInt(max(scale, -scale)), nil)
	switch {
	case scale <= 0 && magnitude.Mul(magnitude, power).Cmp(most) > 0,
		scale > 0 && magnitude.Cmp(new(big.Int).Mul(power, most)) > 0,
		scale > 0 && magnitude.Mul(magnitude, most).Cmp(power) < 0:
		return beyond(q.String())
	}
	return nil
}

func beyond(s string) error {
	return fmt.Errorf("quantity %.40s is beyond 1e-%d to 1e%d: write one that a machine can have", s, Digits, Digits)
}
