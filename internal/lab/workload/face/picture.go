package face

import (
	"bytes"
	"image"
	paint "image/color" //nolint:misspell // the name of the package
	"image/jpeg"
	"math"
	"math/rand/v2"
)

// Width and height of the camera's pictures.
const width, height = 1920, 1080

// person describes a face, in parts of its width.
type person struct {
	name   string
	skin   paint.RGBA
	hair   paint.RGBA
	eyes   float64 // distance of the eyes
	brow   float64 // how thick
	nose   float64 // how long
	mouth  float64 // how wide
	fringe float64 // how far the hair comes down
}

// people are the people in front of the camera.
func people() []person {
	names := []string{"ada", "blaise", "carla", "dmitri", "edsger", "frances", "grace", "hedy"}
	all := make([]person, len(names))
	for i, name := range names {
		part := func(n int) float64 { return float64((i*n)%len(names)) / float64(len(names)-1) }
		all[i] = person{
			name: name, skin: paint.RGBA{uint8(205 + 40*part(3)), uint8(165 + 40*part(3)),
				uint8(140 + 30*part(5)), 255},
			hair: paint.RGBA{uint8(90 * part(5)), uint8(60 * part(5)), uint8(40 * part(7)), 255},
			eyes: 0.19 + 0.05*part(1), brow: 0.020 + 0.025*part(3), nose: 0.20 + 0.10*part(5),
			mouth:  0.13 + 0.09*part(7),
			fringe: 0.10 + 0.14*part(5),
		}
	}
	return all
}

// photograph draws a picture of a person in front of a wall, at a random place and in random light.
func photograph(who person, chance *rand.Rand) []byte {
	picture := image.NewRGBA(image.Rect(0, 0, width, height))
	wall := paint.RGBA{uint8(110 + chance.IntN(50)), uint8(120 + chance.IntN(50)),
		uint8(130 + chance.IntN(50)), 255}
	for i := 0; i < len(picture.Pix); i += 4 {
		grain := uint8(chance.Uint32() & 7)
		picture.Pix[i], picture.Pix[i+1], picture.Pix[i+2], picture.Pix[i+3] = wall.R+grain, wall.G+grain,
			wall.B+grain, 255
	}
	size := 420 + 120*chance.Float64()
	d := drawing{picture, 500 + 900*chance.Float64(), 350 + 300*chance.Float64(), size}
	d.face(who)
	var out bytes.Buffer
	if err := jpeg.Encode(&out, picture, &jpeg.Options{Quality: 80}); err != nil {
		panic(err) // a buffer never fails
	}
	return out.Bytes()
}

// drawing draws a face of some width around a point.
type drawing struct {
	picture    *image.RGBA
	x, y, size float64
}

func (d drawing) face(who person) {
	shade := func(c paint.RGBA, by float64) paint.RGBA {
		return paint.RGBA{uint8(float64(c.R) * by), uint8(float64(c.G) * by), uint8(float64(c.B) * by), 255}
	}
	dark, white := paint.RGBA{25, 20, 20, 255}, paint.RGBA{240, 240, 240, 255}
	d.ellipse(0, 0.62, 0.24, 0.35, shade(who.skin, 0.75)) // neck
	d.ellipse(0, -0.14, 0.56, 0.62, who.hair)
	d.ellipse(0, 0.02, 0.46, 0.62, who.skin)
	d.ellipse(0, -0.58+who.fringe, 0.46, 0.20, who.hair)
	for _, side := range []float64{-1, 1} {
		x := side * who.eyes
		d.ellipse(x, -0.09, 0.14, 0.09, shade(who.skin, 0.72)) // the hollow of the eye
		d.ellipse(x, -0.20, 0.13, who.brow, dark)
		d.ellipse(x, -0.08, 0.09, 0.04, white)
		d.ellipse(x, -0.08, 0.042, 0.042, dark)
		d.ellipse(side*0.30, 0.16, 0.11, 0.10, shade(who.skin, 1.03)) // cheek
		d.ellipse(side*0.05, who.nose-0.01, 0.03, 0.02, shade(who.skin, 0.5))
	}
	d.ellipse(0, who.nose/2-0.02, 0.035, who.nose/2, shade(who.skin, 1.06))
	d.ellipse(0, who.nose+0.02, 0.09, 0.02, shade(who.skin, 0.7))
	d.ellipse(0, 0.36, who.mouth, 0.045, paint.RGBA{130, 50, 50, 255})
	d.ellipse(0, 0.36, who.mouth, 0.010, dark)
}

// ellipse draws a filled ellipse. All lengths are in parts of the face's width.
func (d drawing) ellipse(x, y, w, h float64, fill paint.RGBA) {
	cx, cy, rx, ry := d.x+x*d.size, d.y+y*d.size, w*d.size, h*d.size
	for row := max(0, int(cy-ry)); row <= min(height-1, int(cy+ry)); row++ {
		dy := (float64(row) - cy) / ry
		half := rx * math.Sqrt(max(0, 1-dy*dy))
		for column := max(0, int(cx-half)); column <= min(width-1, int(cx+half)); column++ {
			copy(d.picture.Pix[d.picture.PixOffset(column, row):], []byte{fill.R, fill.G, fill.B, fill.A})
		}
	}
}
