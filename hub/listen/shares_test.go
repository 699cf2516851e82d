package listen

import "testing"

func TestOneUserHasTheirShareAndNoMore(t *testing.T) {
	s := Shares{Most: 2}
	first, ok := s.Enter("anna")
	_, again := s.Enter("anna")
	if _, more := s.Enter("anna"); !ok || !again || more {
		t.Errorf("anna has her share: %v %v %v", ok, again, more)
	}
	other, ok := s.Enter("olav")
	if !ok {
		t.Error("olav has one of his own")
	}
	first()
	if _, ok := s.Enter("anna"); !ok {
		t.Error("what anna has left is not hers again")
	}
	if other(); len(s.by) != 1 {
		t.Errorf("who holds nothing is remembered: %v", s.by)
	}
}
