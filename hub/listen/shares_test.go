package listen

import "testing"

func TestSharesAreLimitedPerUser(t *testing.T) {
	s := Shares{Most: 2}
	first, ok := s.Enter("anna")
	_, again := s.Enter("anna")
	if _, more := s.Enter("anna"); !ok || !again || more {
		t.Errorf("anna has her share: %v %v %v", ok, again, more)
	}
	other, ok := s.Enter("olav")
	if !ok {
		t.Error("olav gets his own share")
	}
	first()
	if _, ok := s.Enter("anna"); !ok {
		t.Error("anna cannot take what she has released")
	}
	if other(); len(s.by) != 1 {
		t.Errorf("users without a share are remembered: %v", s.by)
	}
}
